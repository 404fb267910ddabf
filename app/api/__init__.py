"""HTTP routers, one per noun."""
