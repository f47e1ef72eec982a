raise ImportError("planted")
