"""Use cases of consuming for a group by receipt."""
