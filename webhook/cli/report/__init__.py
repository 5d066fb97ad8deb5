"""The command `report`: what would be refused and who would be stopped, if every rule enforced."""
