"""Routes requests to where their prefix already lies, behind an OpenAI-compatible front end."""
