"""Pages: self-contained HTML files about runs, measurements and doubtful labels, and the figures on them."""
