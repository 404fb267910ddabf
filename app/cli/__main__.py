"""`python -m app.cli`: the command where it is not installed as a script."""

from app.cli import main

main()
