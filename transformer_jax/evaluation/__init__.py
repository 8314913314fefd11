"""From a checkpoint to scores, significance and tables: what is true of every task."""
