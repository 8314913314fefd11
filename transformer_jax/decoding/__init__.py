"""Searching for the best output: functions of a decoding step and a cache."""
