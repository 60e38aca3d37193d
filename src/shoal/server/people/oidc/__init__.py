"""Sign-in by OpenID Connect: Google, Microsoft, or any other issuer that an admin configured."""
