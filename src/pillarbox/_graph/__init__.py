"""Programs: the user's steps, compiled to vertices and levels."""
