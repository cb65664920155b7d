"""Small files as users have them, written without any of the readers."""
