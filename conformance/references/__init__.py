"""What an engine run must agree with: reference outputs, comparison, and measured bounds."""
