"""The queue itself, on Redis or Valkey: its state changes only inside the Lua scripts. Nothing here knows Django."""
