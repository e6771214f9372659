"""Training: the loop and what it runs on, from a job as asked for (`job`) to the worker of each rank (`worker`)."""
