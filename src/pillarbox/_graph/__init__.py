"""Programs: the user's steps, and the vertices and levels into which they are compiled."""
