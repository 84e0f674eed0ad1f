"""Tasks of the paper that are drawn, not read, and tuned settings of its forecasts."""
