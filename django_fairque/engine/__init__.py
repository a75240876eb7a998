"""The queue itself: its truth lives in Redis and changes only inside the Lua scripts. Knows no Django."""
