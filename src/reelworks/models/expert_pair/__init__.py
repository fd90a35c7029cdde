"""Two networks of one size that divide the timesteps, as in Wan 2.2, one for high noise and one for low; or one that guides the other."""
