"""Swarms: peers, invitations, and the coordinator process of each swarm."""
