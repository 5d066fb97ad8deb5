"""The command `report`: pods that would be denied or stopped if every rule enforced."""
