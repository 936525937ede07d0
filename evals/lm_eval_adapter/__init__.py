"""The engine as a model of lm-evaluation-harness: any of its tasks with any method of this project."""
