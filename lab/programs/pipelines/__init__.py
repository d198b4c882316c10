"""Pipeline parallelism (Ch. 16): schedules as data, what they cost by simulation, and their pictures."""
