"""Warns if ranks train copies of a model that drift apart.

first_step   starts the guard in jobs of any backend
guard        the comparison, step by step; read first
replicas     facts about a rank's copy, and the comparison between ranks
"""
