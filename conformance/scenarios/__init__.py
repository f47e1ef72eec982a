"""Engine runs: models, requests, the child processes that run them, and what is observed."""
