"""Built-in tasks, one file each: data that is made, not read."""
