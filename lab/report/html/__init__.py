"""Reports as one HTML file each, and what notebooks show: nothing is fetched, and no script runs but the page's own."""
