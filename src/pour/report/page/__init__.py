"""The page of an audit: one HTML file that loads nothing."""
