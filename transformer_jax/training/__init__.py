"""Training: the step, the schedules it follows, and the loop around it."""
