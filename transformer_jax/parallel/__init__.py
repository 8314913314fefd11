"""Running one step on many devices."""
