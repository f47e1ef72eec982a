"""The nightly alert: new releases of vLLM, each compared with the one before it, and told of."""
