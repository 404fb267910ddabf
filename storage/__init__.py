"""Where nightowl keeps things: SQLite tables with migrations, expert files, atomic writes."""
