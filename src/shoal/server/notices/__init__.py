"""Notifications of people: rules, what they match, notices in the console, and delivery by e-mail and webhooks."""
