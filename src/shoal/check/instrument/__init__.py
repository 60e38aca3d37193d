"""The few SDK lines a plain training script lacks, put in place without touching anything else of it."""
