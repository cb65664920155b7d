"""Reports for people: pictures, HTML pages and text for the terminal. matplotlib is loaded on first use."""
