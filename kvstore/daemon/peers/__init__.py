"""This daemon among its peers: who they are, what they hold, and bringing it here."""
