"""What routes call. A service takes the Context and plain values, and returns wire schemas."""
