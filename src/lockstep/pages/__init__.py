"""Pages: self-contained HTML files about runs, and the figures on them."""
