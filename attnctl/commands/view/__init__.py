"""`attnctl view`: a trace, or two side by side, as one HTML page to explore."""
