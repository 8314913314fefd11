"""What a user gets: trained models that translate, continue and fill texts, and predict."""
