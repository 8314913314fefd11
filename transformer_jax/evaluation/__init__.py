"""From a checkpoint to scores, significance and tables, for every task."""
