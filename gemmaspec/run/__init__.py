"""What touches the world: engines, images, runtimes, models, what is kept on this machine."""
