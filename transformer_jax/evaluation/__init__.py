"""From a checkpoint to scores and translations."""
