"""What the GPU runner reaches of the device."""
