"""Trackers: where the metrics of a run are logged, such as metrics.jsonl, TensorBoard, Weights & Biases or MLflow."""
