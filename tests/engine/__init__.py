"""The engine on a real server: each script, each promise. Time is passed in."""
