"""Images: seals, explicit verification, bindings and the checked files that a launch hands over."""
