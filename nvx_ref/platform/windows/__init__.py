"""Windows: what its four modules will hold, so that the rooms above are checked for it too; nothing runs yet."""
