"""What torch calls: operators, their derivatives, and the tensors they run on."""
