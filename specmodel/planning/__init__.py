"""What a plan is made of: levers, doubts, schedules, files."""
