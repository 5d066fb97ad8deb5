"""The command `report`: what would be denied and who would be stopped, if every rule enforced."""
