"""Pages: self-contained HTML files about runs and doubtful labels, and the figures on them."""
