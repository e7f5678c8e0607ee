"""Optional rooms: the kernel imports none of them, and each could be a package of its own."""
